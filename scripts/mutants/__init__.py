"""Small wrong changes to docleak's formulas, and whether the tests beside them notice."""
