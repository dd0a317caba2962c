"""Names, lookups, tables and mistakes of placement groups."""
# cluster: 2 CPU

import ray
from ray.util import get_placement_group
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)

ray.init(namespace="groups")
group = placement_group([{"CPU": 1}], name="mine", strategy="SPREAD")
ray.get(group.ready())
same = get_placement_group("mine")
print(same == group, same.id == group.id, same.bundle_specs)
table = placement_group_table(group)
print(sorted(table))
print(table["name"], table["strategy"], table["state"], table["bundles"])
print(len(placement_group_table()) >= 1)
try:
    placement_group([{"CPU": 1}], name="mine")
    print("same name accepted")
except Exception as error:
    print(type(error).__name__)
try:
    get_placement_group("other")
except ValueError as error:
    print("ValueError", error)
remove_placement_group(group)
try:
    get_placement_group("mine")
    print("found")
except ValueError:
    print("gone")
for wrong in ([], [{}], [{"CPU": 0}], {"CPU": 1}, [3], [{"CPU": "1"}]):
    try:
        print(wrong, placement_group(wrong).wait(1))
    except Exception as error:
        print(wrong, type(error).__name__, str(error).splitlines()[0].split(". ")[0][:70])
