"""Converts a profile with XProf's own converter, for open_profiles.py: convert.py LOGDIR TOOL... prints one JSON document."""
import glob
import json
import sys

from xprof.convert import raw_to_tool_data

files = glob.glob(sys.argv[1] + "/plugins/profile/*/*.xplane.pb")
tools = {}
for tool in sys.argv[2:]:
    data, _ = raw_to_tool_data.xspace_to_tool_data(files, tool, {})
    tools[tool] = json.loads(data)
print(json.dumps(tools))
