"""The accuracies that the paper prints: Markou, Ajanthan, Gould, Guiding Neural Collapse, NeurIPS 2024, tables 1 to 3."""

from guided_collapse.experiments.run_format import Split
from guided_collapse.experiments.report.summaries import Spread

# Split, experiment and epoch; then median, low and high in per cent for standard, fixed and implicit, over five seeds.
# One low is printed above its median; it stands as printed.
_ACCURACY = """
train cifar10-resnet18    50   87.42  86.1  89.7   86.89  84.7  88.6   88.71  88.5  89.6
train cifar10-resnet18   200   96.69  96.5  98.6   97.18  95.6  97.9   98.09  97.9  98.6
train cifar10-vgg13       50   93.59  90.7  97.0   76.66  53.9  85.8   95.69  95.2  96.2
train cifar10-vgg13      200   99.15  97.9  99.8   79.36  59.6  99.1   99.56  99.4  99.7
train cifar100-resnet50   50   58.47  53.9  59.6   63.93  61.1  65.2   72.15  70.1  74.1
train cifar100-resnet50  200   95.87  94.7  98.6   91.34  90.4  92.1   96.96  96.2  97.3
train cifar100-vgg13      50    82.0  80.5  84.0   81.14  76.0  81.9   88.39  86.9  89.4
train cifar100-vgg13     200   99.34  99.2  99.6   94.55  92.5  95.3   98.92  98.8  99.0
train stl10-resnet50      50   83.86  84.5  90.7   86.76  77.8  86.8   93.54  91.3  95.3
train stl10-resnet50     200   99.42  99.0  99.9   98.38  98.1  99.3   99.72  98.0  99.9
train stl10-vgg13         50   82.66  73.7  90.7    83.6  65.6  85.1   90.14  69.2  93.5
train stl10-vgg13        200   100.0 100.0 100.0   99.92  99.8  99.9   100.0 100.0 100.0
train imagenet-resnet50   50   58.35  58.0  59.1   70.44  69.5  70.7   74.09  73.8  74.5
train imagenet-resnet50  200    77.2  76.5  77.3   83.09  83.1  83.6   88.01  87.5  88.5
test  cifar10-resnet18    50   80.47  79.4  82.6   80.63  79.4  81.8   81.76  81.4  82.0
test  cifar10-resnet18   200   83.97  83.2  84.8   84.53  83.7  84.9   84.78  84.3  85.1
test  cifar10-vgg13       50    86.7  83.7  89.4   70.99  50.7  80.7    88.3  87.4  88.7
test  cifar10-vgg13      200   90.34  89.1  91.5   72.48  56.9  90.5   90.98  90.6  91.5
test  cifar100-resnet50   50   45.91  42.1  46.3   45.37  43.2  45.6   48.38  48.0  49.3
test  cifar100-resnet50  200   51.29  50.4  51.9   48.03  47.7  49.3   50.52  50.2  51.2
test  cifar100-vgg13      50   60.82  59.3  61.2    60.1  57.1  61.1   62.39  61.8  63.6
test  cifar100-vgg13     200   67.54  66.4  68.1   62.78  61.6  63.4   67.14  66.8  67.6
test  stl10-resnet50      50   55.41  54.8  58.3   58.11  57.1  60.0   57.56  56.4  59.2
test  stl10-resnet50     200    63.6  61.8  65.2   64.33  63.9  66.5   62.75  60.7  63.0
test  stl10-vgg13         50   66.09  60.0  72.3   66.15  52.2  67.7   68.78  56.2  71.3
test  stl10-vgg13        200   81.61  81.3  81.9   79.53  78.6  80.3   79.94  79.5  80.9
test  imagenet-resnet50   50   52.64  52.3  53.3   58.85  58.3  59.1    63.4  63.2  63.8
test  imagenet-resnet50  200   60.02  59.8  60.7   61.47  61.4  62.0   65.36  65.0  65.7
"""
SEEDS = 5


def paper_accuracy(split: Split, experiment: str, epoch: int) -> dict[str, Spread]:
    """What the paper prints for an experiment, by head; empty if it prints nothing.

    On ImageNet the paper omits the gradient through the solve, so its number is that of the head `nearest-etf-detached`.
    """
    nearest = "nearest-etf-detached" if experiment.startswith("imagenet") else "nearest-etf"
    for line in _ACCURACY.split("\n"):
        if line.split()[:3] == [split, experiment, str(epoch)]:
            numbers = [float(number) for number in line.split()[3:]]
            heads = ("cosine", "fixed-etf", nearest)
            return {head: Spread(*numbers[3 * place : 3 * place + 3], SEEDS, (epoch,)) for place, head in enumerate(heads)}
    return {}
