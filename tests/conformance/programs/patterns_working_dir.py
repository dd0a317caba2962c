"""Files and modules of a working_dir, modules of py_modules: in tasks and actors, not beside them."""
# cluster: 2 CPU

import os
import tempfile
from pathlib import Path

import ray

with tempfile.TemporaryDirectory() as folder:
    work = Path(folder, "work")
    package = Path(folder, "shipped_package")
    work.mkdir()
    package.mkdir()
    (work / "settings.txt").write_text("from the working_dir")
    (work / "shipped_helper.py").write_text("def double(x):\n    return 2 * x\n")
    (package / "__init__.py").write_text("NAME = 'shipped'\n")
    ray.init(runtime_env={"working_dir": str(work), "py_modules": [str(package)]})

    @ray.remote
    def read():
        return Path("settings.txt").read_text()

    @ray.remote
    def double(x):
        import shipped_helper

        return shipped_helper.double(x)

    @ray.remote
    class Reader:
        def __init__(self):
            import shipped_package

            self.name = shipped_package.NAME
            self.text = Path("settings.txt").read_text()

        def about(self):
            return self.name, self.text, sorted(p.name for p in Path().iterdir() if p.suffix)

        def go_up(self):
            os.chdir("..")
            return Path("settings.txt").exists()

        def still(self):
            return Path("settings.txt").exists()

    print(ray.get(read.remote()), ray.get(double.remote(21)))
    reader, other = Reader.remote(), Reader.remote()
    print(ray.get(reader.about.remote()))
    print(ray.get([reader.go_up.remote(), reader.still.remote(), other.still.remote()]))
    print(Path("settings.txt").exists())
    try:
        read.options(runtime_env={"working_dir": str(Path(folder, "nowhere"))}).remote()
    except ValueError as error:
        print("ValueError", "not a valid" in str(error))
