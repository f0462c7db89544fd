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


def test_what_an_attack_read_is_struck_near_to_the_truth_or_not() -> None:
    """A name with one letter wrong tells the name; a made-up "befor" is struck, and "beforehand" stays."""
    record = {
        "answer": "A-911107",
        "recovered": {"believed_exact": False, "answer": "Rosa Meyer"},
        "fields": [{"value": "Rose Meyer"}],
    }
    values = private_values([record])
    assert values == {"A-911107", "Rosa Meyer", "Rose Meyer"}
    assert struck("read: Rosa Meyer", values) == "read: [redacted]"
