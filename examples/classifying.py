"""
Labels for series
=================

BasicMotions is installed with `toa`: six channels of a smart watch, four motions to tell apart.
"""

from aeon.datasets import load_basic_motions

import toa

# %%
# The cases are an array of shape (cases, channels, steps). Series of different lengths may be a list of arrays, and a
# frame with columns of ids, times and labels works too.

X, y = load_basic_motions(split="train")
X_new, y_new = load_basic_motions(split="test")
print(f"{len(X)} cases of {X.shape[1]} channels and {X.shape[2]} steps: {', '.join(sorted(set(y)))}")

# %%
# `fit` holds out a part of the cases to choose the epoch; `score` is the accuracy.

classifier = toa.Classifier(epochs=6).fit(X, y)
accuracy = classifier.score(X_new, y_new)
print(f"accuracy on {len(X_new)} new cases: {accuracy:.2f}")
label, chance = classifier.predict(X_new[:1])[0], classifier.predict_proba(X_new[:1]).max()
print(f"first new case: {label}, with probability {chance:.2f}")

# %%
# In a terminal: `toa classify Motions_TRAIN.ts --test Motions_TEST.ts`, for `.ts` files or CSV.
