"""What is struck out of a redacted edition, and what is not."""

from docleak.report.redaction import private_values, struck


def test_a_value_within_another_word_is_not_struck_and_so_not_told() -> None:
    assert (
        struck("given beforehand by Rose, Roseburg 4", ["befor", "Rose"])
        == "given beforehand by [redacted], Roseburg 4"
    )
    assert struck("file_A-911107x.png", ["A-911107"]) == "file_[redacted]x.png", (
        "numbers are struck wherever they stand"
    )


def test_what_an_attack_made_up_is_no_true_value() -> None:
    """Closed form under noise read the answer "befor", and "beforehand" was struck."""
    record = {
        "answer": "A-911107",
        "recovered": {"believed_exact": False, "answer": "befor"},
        "fields": [{"value": "Rose"}],
    }
    assert private_values([record]) == {"A-911107", "Rose"}
