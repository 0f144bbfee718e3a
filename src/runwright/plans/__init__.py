"""From what people write to one ExecutionPlan, and back; the plan store."""
