import verifiers.v1 as vf


class VaultTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def open_vault(self, code: str) -> str:
        """Open the vault."""
        return "4711" if code == "sesame" else "wrong code"


if __name__ == "__main__":
    VaultTools.run()
