"""The samples of a whole update at once."""

from dataclasses import replace

from spaniel.rl.samples import UpdateSamples


def samples_of_update(groups, normalization="token", **settings):
    """Samples whose weights are divided by the update's denominator."""
    update = UpdateSamples(scale_by_std=False, normalization=normalization, **settings)
    made = [sample for samples in update.add(groups) for sample in samples]
    return [replace(s, weights=tuple(w / update.denominator for w in s.weights)) for s in made]
