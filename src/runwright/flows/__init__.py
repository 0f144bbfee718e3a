"""Plans written in Python: functions become steps, and calling them writes the plan down."""
