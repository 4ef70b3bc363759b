"""One measuring program for a real GPU and a simulated one, and what it says held side by side."""
