// Browsers start no worker from a file, and the search of this manual runs in one. Where the manual is read from files, a hidden
// frame takes the worker's place: the same script in it, the same messages. Read from a server, nothing is changed.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      this.inside = frame.contentWindow;
      const load = source => new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        Object.assign(script, {src: source, onload: done, onerror: failed});
        this.inside.document.body.append(script);
      });
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      this.inside.importScripts = async (...sources) => { for (const source of sources) await load(source); };
      this.ready = load(address);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})));
    }
    terminate() { this.inside.frameElement.remove(); }
  };
}
