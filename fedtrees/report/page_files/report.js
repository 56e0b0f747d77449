(()=>{const r=document.documentElement,b=document.getElementById('theme');b.hidden=false;
b.onclick=()=>{const d=r.dataset.theme||(matchMedia('(prefers-color-scheme:dark)').matches?'dark':'light');r.dataset.theme=d==='dark'?'light':'dark'};
document.querySelectorAll('.copy').forEach(c=>{if(!navigator.clipboard)return;c.hidden=false;c.onclick=()=>navigator.clipboard.writeText(c.dataset.copy).then(()=>{c.textContent='Copied';setTimeout(()=>c.textContent='Copy',1200)})});
document.querySelectorAll('.pt').forEach(p=>{const s=p.closest('section').querySelector('.say'),on=()=>s.textContent=p.dataset.say;p.addEventListener('mouseenter',on);p.addEventListener('focus',on)});
document.querySelectorAll('table.sorts th').forEach(h=>{const b=document.createElement('button');b.type='button';b.append(...h.childNodes);h.append(b);h.ariaSort='none';b.onclick=()=>{const up=h.ariaSort==='ascending'?-1:1,y=h.closest('table').tBodies[0],v=r=>{const c=r.cells[h.cellIndex];return c.dataset.v??c.textContent},n=x=>x===''?-1/0:+x;
h.parentNode.querySelectorAll('th').forEach(o=>o.ariaSort='none');h.ariaSort=up>0?'ascending':'descending';
[...y.rows].sort((a,b)=>{const p=v(a),q=v(b);return up*(isNaN(p)||isNaN(q)?p.localeCompare(q):n(p)-n(q))}).forEach(o=>y.append(o))}});
addEventListener('beforeprint',()=>document.querySelectorAll('details').forEach(d=>{d.dataset.was=d.open?'1':'';d.open=true}));
addEventListener('afterprint',()=>document.querySelectorAll('details').forEach(d=>d.open=!!d.dataset.was));})();
