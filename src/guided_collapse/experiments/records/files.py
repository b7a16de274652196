from guided_collapse.experiments.files import *  # noqa
