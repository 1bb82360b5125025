"""Imports go one way, and the command line starts without torch."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "spaniel"
LAYERS = [
    {"types", "errors", "__init__"},
    {"config", "progress", "world"},
    {"store", "cache"},
    {"corpus", "llm"},
    {"index"},
    {"env", "chat_template", "lending", "routing"},
    {"renderer"},
    {"policy", "rewards", "optimizer", "packing", "value_head"},
    {"microbatch"},
    {"rollout", "learner", "run", "checkpoints"},
    {"ranks"},
    {"questions"},
    {"workbench"},
    {"sft", "rl", "eval"},
    {"stages", "plan"},
    {"cli"},
    {"__main__"},
]
"""A module may import from layers above it in this list, and from its own package."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def top(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports_of(path: Path) -> set[str]:
    """Top-level parts that a file imports, those inside functions included; type-only ones not."""
    tree = ast.parse(path.read_text())
    type_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in type_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "spaniel":
                names = [f"spaniel.{a.name}" for a in node.names]
                found |= {n if (PACKAGE / f"{top(n)}.py").exists() else "spaniel" for n in names}
                found |= {n for n in names if (PACKAGE / top(n)).is_dir()}
            elif node.module.startswith("spaniel."):
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.split(".")[0] == "spaniel"}
    return {top(module) for module in found}


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def test_every_part_of_the_package_has_its_layer():
    parts = {part_of(path) for path in PACKAGE.rglob("*.py")}
    assert parts <= set(LEVEL), f"give {sorted(parts - set(LEVEL))} a layer"


def test_imports_go_one_way():
    upward = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for other in sorted(imports_of(path))
        if other != part_of(path) and LEVEL[other] >= LEVEL[part_of(path)]
    ]
    assert upward == []


def test_the_command_line_loads_no_heavy_library():
    code = (
        "import sys, spaniel.cli\n"
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'tantivy', 'openai', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
