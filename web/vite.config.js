// Builds the page into one HTML file, so that the server needs one embedded file and the browser one request.
import { createHash } from 'node:crypto';
import { defineConfig } from 'vite';

const hash = (text) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

// Puts script and style into the HTML, and the policy that allows exactly these two.
const oneFile = {
  name: 'one-file',
  enforce: 'post',
  generateBundle(_, bundle) {
    const named = (end) => Object.keys(bundle).filter((name) => name.endsWith(end));
    const html = bundle[named('.html')[0]];
    const script = named('.js').map((n) => bundle[n].code).join('\n').replaceAll('</script', '<\\/script').trim();
    const style = named('.css').map((n) => bundle[n].source).join('\n').trim();
    for (const name of [...named('.js'), ...named('.css')]) delete bundle[name];
    // uPlot and Preact set style attributes, which a hash cannot name: hence unsafe-inline for styles alone.
    const policy = `default-src 'none'; script-src ${hash(script)}; style-src 'unsafe-inline'; connect-src 'self'; ` +
      `img-src data:; base-uri 'none'; form-action 'none'`;
    const head = `<meta http-equiv="Content-Security-Policy" content="${policy}">\n<style>${style}</style>`;
    html.source = html.source
      .replace(/<script type="module"[^>]*><\/script>\n?/g, '')
      .replace(/<link rel="(stylesheet|modulepreload)"[^>]*>\n?/g, '')
      .replace('<!--head-->', () => head)
      .replace('</body>', () => `<script type="module">${script}</script>\n</body>`);
  },
};

export default defineConfig({
  plugins: [oneFile],
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: { target: 'es2022', cssCodeSplit: false, modulePreload: false, assetsInlineLimit: 1e8, reportCompressedSize: false },
  server: { proxy: Object.fromEntries(['/v1', '/metrics', '/health', '/tokenize'].map((p) => [p, 'http://127.0.0.1:8000'])) },
});
