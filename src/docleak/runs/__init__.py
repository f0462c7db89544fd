"""One store for every long job: what it was asked, what is finished, who is at work, and its worker processes."""
