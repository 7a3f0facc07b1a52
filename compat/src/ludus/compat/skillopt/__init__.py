"""SkillOpt: its YAML files and `EnvAdapter` classes in our trainer."""
