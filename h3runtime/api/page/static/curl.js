// A request as a curl command that can be pasted into a shell. The key is never in it, only the variable's name.

/** names: file name by part. hasKey: the server asks for one. */
export function curlCommand(origin, request, names, hasKey) {
  const words = [`curl -sS ${quoted(`${origin}/generate`)}`];
  if (hasKey) words.push('-H "Authorization: Bearer $H3_API_KEY"');
  if (Object.keys(names).length === 0) {
    words.push("-H 'Content-Type: application/json'", `--data-raw ${quoted(JSON.stringify(request))}`);
    return words.join(" \\\n  ");
  }
  // -F would take a semicolon in the text for an option of its own.
  words.push(`--form-string ${quoted(`request=${JSON.stringify(request)}`)}`);
  for (const [part, name] of Object.entries(names)) words.push(`-F ${quoted(`${part}=@${fileName(name)}`)}`);
  return words.join(" \\\n  ");
}

/** One word of a POSIX shell, whatever is in it. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** curl reads `,` and `;` in a file's name unless it is in double quotes. */
function fileName(name) {
  const plain = /^[\w.()+ -]+$/.test(name) && !name.startsWith("-");
  return plain ? name : `"${name.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
}
