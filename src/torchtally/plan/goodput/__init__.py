"""What a whole training takes besides its steps: saving, evaluating, failing and starting again."""
