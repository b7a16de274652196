from guided_collapse.experiments.records import shortened, one_line  # noqa
