"""The digest chain of the audit, and what changed between two versions. Start at `chain`."""
