"""The race of a recommendation: candidates on half of the text, and the decision on the other half."""
