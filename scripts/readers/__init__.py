"""How tiny vision-language models learn to read synthetic invoices."""
