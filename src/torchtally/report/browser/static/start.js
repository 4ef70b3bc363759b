// Unpacks the page's script and its data, and starts the one with the other.

async function unpacked(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  document.getElementById(id).remove();
  return new Response(stream).text();
}

(async () => {
  const started = performance.now();
  try {
    const [data, code] = await Promise.all([unpacked("data"), unpacked("app")]);
    const script = document.createElement("script");
    script.textContent = code;
    document.body.append(script);
    window.tally.open(JSON.parse(data));
    document.documentElement.dataset.readyMs = String(Math.round(performance.now() - started));
  } catch (error) {
    document.getElementById("page").append(`This page cannot be shown: ${error.message}`);
    throw error;
  }
})();
