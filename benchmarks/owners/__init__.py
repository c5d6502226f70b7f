"""Which model needs each special case: templates, forms, laws, patterns and passes, counted.

cases       what there is
counting    what the plan of a model makes use of
reasons     why some stay that no planned model uses
table       the page
"""
