"""Images to train on: a folder of image files, arrays in an .npz file, or scikit-learn's digits.

dataset.py   what a data set provides, and which one an option names
arrays.py    arrays in memory: .npz files, digits
folder.py    image files, one folder for each class
batches.py   the order of images, as a function of seed and step
"""
