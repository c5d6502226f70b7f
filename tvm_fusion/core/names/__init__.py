"""The user's names of operators.

* ``source``: the operators of the model that a variable's value comes from.
* ``inherit``: gives them to operators that a pass writes anew.
"""
