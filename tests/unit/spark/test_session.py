"""What a command ships to executors: our code, whole, in one file that Python loads."""

import subprocess
import sys
from pathlib import Path

from headrace.spark.pipelines.shipping import pack


def test_the_packed_code_is_loaded_from_the_file_it_is_packed_in(tmp_path: Path) -> None:
    packed = pack(tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(packed)!r})\n"
        "import pyspark_headrace, headrace.spark.pipelines.assign as assign, headrace.spark.directory as directory\n"
        "print(pyspark_headrace.__file__, assign.__file__, directory.__file__)"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr
    assert all(file.startswith(str(packed)) for file in ended.stdout.split())
