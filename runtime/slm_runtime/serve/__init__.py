"""`slm-run serve`: one bundle and one task behind HTTP, many clients in shared batches."""
