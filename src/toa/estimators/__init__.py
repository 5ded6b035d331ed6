"""Estimators for a person's own data, with scikit-learn's habits."""
