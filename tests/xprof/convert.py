"""Converts a profile with XProf's own converter, for open_profiles.py: convert.py LOGDIR MODULE TOOL... prints one JSON document.

MODULE is "NAME(ID)" of the program that the memory viewer and the graph viewer show, "" without one.
"""
import glob
import json
import sys

from xprof.convert import raw_to_tool_data

files = glob.glob(sys.argv[1] + "/plugins/profile/*/*.xplane.pb")
raw_to_tool_data.xspace_to_tool_names(files)  # leaves the modules beside the file, where the viewers look for them
module = {"module_name": sys.argv[2], "program_id": sys.argv[2].rpartition("(")[2].rstrip(")")}
tools = {}
for tool in sys.argv[3:]:
    options = {**module, "memory_space": "0"} if tool == "memory_viewer" else {}
    if tool == "graph_viewer":
        options = {"graph_viewer_options": {**module, "type": "short_txt"}}
    data, _ = raw_to_tool_data.xspace_to_tool_data(files, tool, options)
    if isinstance(data, bytes):
        data = data.decode()
    tools[tool] = data if tool == "graph_viewer" else json.loads(data)
print(json.dumps(tools))
