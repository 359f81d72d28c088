"""One engine with one quantized model, inside a memory budget it never exceeds."""
