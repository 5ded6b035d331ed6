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
# `fit` weights convolutional kernels, simple features and a network. Every member predicts each case without having
# seen it, so the accuracy estimates that of new cases. It stands beside simple baselines. On these easy cases the
# kernels make no error, and no network is trained. The first fit on a machine compiles the kernels for a minute.

classifier = toa.Classifier().fit(X, y)
for method, accuracy in classifier.stack_.accuracies.items():
    print(f"{method:>24}: {accuracy:.3f}   weight {classifier.weights_.get(method, 0.0):.2f}")
print("the stack " + "; ".join(classifier.stack_.verdicts()))

# %%
# `score` is the accuracy on other cases. Probabilities are calibrated: they are what the cross-validation supports.

accuracy = classifier.score(X_new, y_new)
print(f"accuracy on {len(X_new)} new cases: {accuracy:.2f}, expected {classifier.validation_:.2f}")
label = classifier.predict(X_new[:1])[0]
chance = classifier.predict_proba(X_new[:1]).max()
print(f"first new case: {label}, with probability {chance:.2f}")

# %%
# `model="toa"` is the network alone, here with few epochs; validation chooses the length of patches.

network = toa.Classifier(model="toa", epochs=3, settings={"instance_norm": False}).fit(X, y)
print(f"network alone: {network.score(X_new, y_new):.2f}, expected {network.validation_:.2f}")

# %%
# In a terminal: `toa classify Motions_TRAIN.ts --test Motions_TEST.ts`, for `.ts` files or CSV, prints the same table.
# On 17 sets of the UEA archive, `toa bench uea` compares the default, the network alone and MultiRocketHydra.
