"""One measuring program for a real GPU and a simulated one."""
