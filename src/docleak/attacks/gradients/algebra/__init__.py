"""What linear algebra reads out of a gradient, without optimisation: text, boxes, the answer and patches."""
