"""A model -> its price (M23): the real module, run without numbers, tells what it costs."""
