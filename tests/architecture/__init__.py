"""What holds of the whole house: layers, sizes, the wheel, and the words in the documentation."""
