"""What the text of a gradient says about its picture, and the picture about the text."""
