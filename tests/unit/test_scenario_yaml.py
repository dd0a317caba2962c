"""YAML that is not what it looks like."""

from __future__ import annotations

import pytest

from raysim.errors import ScenarioError
from raysim.scenario.yaml_text import parse_yaml_all

HELM = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: {{ include "ray-cluster.fullname" . }}
  {{- if .Values.x }}
  labels: {}
"""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (HELM, "x.yaml:4:9"),
        ('cloud_id: {{env["ANYSCALE_CLOUD_ID"]}}\n', "x.yaml:1:11"),
        ("a: 1\nreplicas: {{.Replicas}}\n", "x.yaml:2:11"),
    ],
)
def test_a_template_is_called_one(text: str, where: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_yaml_all(text, "x.yaml")
    assert str(caught.value).startswith(f"{where}   a template, with placeholders such as {{{{")


def test_braces_in_a_text_are_none() -> None:
    assert parse_yaml_all('a: "{{ x }}"\n', "x.yaml")[0].data == {"a": "{{ x }}"}
