"""What training saves on its way, to go on from after any end."""

FOLDER = "checkpoints"  # in the run's folder
