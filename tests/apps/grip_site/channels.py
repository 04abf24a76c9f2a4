"""Which channels are stored, and who may read them."""

from django.conf import settings
from django_eventstream.channelmanager import DefaultChannelManager


def denial(user, channel):
    """The file that denies a user a channel."""
    return settings.DATA / f"denied-{user.username}-{channel}"


class Channels(DefaultChannelManager):
    def can_read_channel(self, user, channel):
        return user is None or not denial(user, channel).exists()

    def is_channel_reliable(self, channel):
        return not channel.startswith("fleeting")
