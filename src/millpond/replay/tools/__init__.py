"""Tools on a whole lake, each a command: `millpond lake info | verify | compact | repair`.

info      summarise it: streams, episodes, transitions, bytes, and returns by stream and round
verify    compare every checksum: list what is damaged, and count what is still readable
compact   compress the frames of cold segments again with zstd; upgrade a lake of an older format
repair    rebuild what can be rebuilt, and write down what is lost
"""

from millpond.replay.tools.compact import Compacted, compact
from millpond.replay.tools.info import LakeInfo, info
from millpond.replay.tools.repair import RepairReport, repair
from millpond.replay.tools.verify import VerifyReport, verify

__all__ = ["Compacted", "LakeInfo", "RepairReport", "VerifyReport", "compact", "info", "repair", "verify"]
