"""What is wrong with a job from its first step, or with a checkpoint. Changes nothing."""
