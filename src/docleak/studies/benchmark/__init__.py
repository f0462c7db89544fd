"""A frozen benchmark in files: made, attacked through files alone, scored. Any framework's attack can enter it."""
