"""PDFs as pages: pictures, words of the text layer or of OCR, and where the values of a list stand among them."""
