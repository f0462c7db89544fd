"""Write the tiny encoders' vocabulary: word pieces of synthetic invoices and of receipts (SROIE, CC BY 4.0).

    python scripts/encoder_vocabulary.py sroie:PATH src/docleak/models/encoders/vocabulary.txt

Of the receipts, only words of three documents or more are looked at, so that no page's own secret is a piece. The
trainer breaks ties by chance, so that a second run gives a slightly different list: the one in the package stays.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from docleak.documents import load_pages
from docleak.documents.synthetic import make_pages
from docleak.files import write_atomically
from docleak.models.encoders.tiny import word_piece_tokenizer

PIECES = 2000
FEWEST_DOCUMENTS = 3


def main() -> None:
    """Read, learn, write."""
    receipts = [[word.text.lower() for word in page.words] for page in load_pages(sys.argv[1], seed=0)]
    documents = Counter(word for words in receipts for word in set(words))
    texts = [" ".join(word for word in words if documents[word] >= FEWEST_DOCUMENTS) for words in receipts]
    texts += [" ".join(word.text for word in page.words) for page in make_pages(400, seed=1, split="train")]
    tokenizer = word_piece_tokenizer(texts, vocabulary=PIECES)
    pieces = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    write_atomically(Path(sys.argv[2]), ("\n".join(pieces) + "\n").encode())


if __name__ == "__main__":
    main()
