"""Which configurations of a design space to measure next.

``bayesian``       Bayesian optimisation, without another package
``evolutionary``   MetaSchedule's evolutionary search and its XGBoost cost model
"""
