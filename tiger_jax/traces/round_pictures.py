"""stub"""


def write_pictures(folder, stories, settings):
    pass
