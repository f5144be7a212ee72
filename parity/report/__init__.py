"""What a person is shown of the cases that were tried: a table in the terminal, a page in the browser."""
