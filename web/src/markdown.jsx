// Markdown of a model's answer: parsed, sanitised, coloured. Nothing of it runs: what the model writes is as untrusted as what a
// stranger writes.
import hljs from '@highlightjs/cdn-assets/es/highlight.js';
import DOMPurify from 'dompurify';
import { marked } from 'marked';
import { useLayoutEffect, useRef } from 'preact/hooks';

marked.use({ gfm: true, breaks: true });

const clean = (html) => DOMPurify.sanitize(html, {
  USE_PROFILES: { html: true },
  FORBID_TAGS: ['style', 'form', 'input', 'textarea', 'select', 'button', 'img', 'video', 'audio', 'iframe'],
  FORBID_ATTR: ['style', 'id', 'name'],
});

function addCopyButton(pre) {
  const button = document.createElement('button');
  button.className = 'copy';
  button.textContent = 'Copy';
  button.onclick = async () => {
    await navigator.clipboard.writeText(pre.querySelector('code').textContent);
    button.textContent = 'Copied';
    setTimeout(() => (button.textContent = 'Copy'), 1500);
  };
  pre.append(button);
}

// `done`: colours and copy buttons come when the answer has ended; while it streams they would flicker.
export function Markdown({ text, done }) {
  const ref = useRef(null);
  useLayoutEffect(() => {
    const node = ref.current;
    node.innerHTML = clean(marked.parse(text));
    for (const link of node.querySelectorAll('a[href]')) {
      link.target = '_blank';
      link.rel = 'noopener noreferrer nofollow';
    }
    if (!done) return;
    for (const pre of node.querySelectorAll('pre')) {
      const code = pre.querySelector('code');
      if (!code) continue;
      const named = /language-([\w+#-]+)/.exec(code.className)?.[1];
      if (named && hljs.getLanguage(named)) hljs.highlightElement(code);
      addCopyButton(pre);
    }
  }, [text, done]);
  return <div class="markdown" ref={ref} />;
}
