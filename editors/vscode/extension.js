// Starts `tally lsp` for the Python files of a window. All that is shown comes from the server.
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function settings() {
  const section = vscode.workspace.getConfiguration("tally");
  const names = ["gpu", "script", "arguments", "steps", "runOnSave", "maxSeconds"];
  return Object.fromEntries(names.map((name) => [name, section.get(name)]));
}

function execute(command) {
  const document = vscode.window.activeTextEditor?.document;
  if (document) {
    const parameters = { command, arguments: [client.code2ProtocolConverter.asUri(document.uri)] };
    return client.sendRequest("workspace/executeCommand", parameters);
  }
}

exports.activate = async (context) => {
  const [command, ...args] = vscode.workspace.getConfiguration("torchtally").get("command");
  client = new LanguageClient(
    "torchtally",
    { command, args },
    {
      documentSelector: [{ scheme: "file", language: "python" }],
      initializationOptions: settings(),
      synchronize: { configurationSection: "tally" },
    },
  );
  context.subscriptions.push(
    vscode.commands.registerCommand("torchtally.run", () => execute("tally.run")),
    vscode.commands.registerCommand("torchtally.fix", () => execute("tally.fix")),
  );
  await client.start();
};

exports.deactivate = () => client?.stop();
